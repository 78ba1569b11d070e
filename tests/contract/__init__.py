"""The contract of the KV plane: what every transport must do."""
