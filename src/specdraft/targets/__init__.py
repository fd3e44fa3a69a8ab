"""TODO-targets"""
