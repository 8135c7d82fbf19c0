"""What makes, measures and proves Stoker: never shipped, never imported by the product."""
