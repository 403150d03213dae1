"""A module for each family: how it writes calls, and what reads them."""
