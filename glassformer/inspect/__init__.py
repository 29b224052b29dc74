"""Looking at models from outside: what they hold and what they cost."""
