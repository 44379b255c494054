"""The pages of the console: each from what was read, without reading anything itself."""
