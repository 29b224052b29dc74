"""Inspecting models: facts, parts, parameters and cost."""
