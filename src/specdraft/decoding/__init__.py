"""TODO-decoding"""
