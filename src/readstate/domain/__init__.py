"""The product's values and rules. Pure: no I/O and no clock."""
