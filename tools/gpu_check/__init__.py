"""What only a machine with an NVIDIA GPU can show: `make gpu-check` (docs/gpu-check.md)."""
