"""Choose tokens: from logits, bias, penalties, masks, filters and noise."""
