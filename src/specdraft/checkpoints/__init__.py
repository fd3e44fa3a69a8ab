"""TODO-checkpoints"""
