"""Live tests of the test bed itself."""
