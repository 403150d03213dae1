"""The routes, one module for each kind of thing that they show or change."""
