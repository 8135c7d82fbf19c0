"""What tests, proofs and benches share: never shipped, never imported by the product."""
