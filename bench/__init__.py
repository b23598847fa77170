"""How fast Readstate is, beside what one would write in an afternoon."""
