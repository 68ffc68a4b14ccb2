"""What tests share; CONTRIBUTING.md says what is where."""
