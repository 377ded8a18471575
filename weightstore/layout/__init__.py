"""Tensors, boxes, schemas: where an element lives, said without files or ranks; pure."""
