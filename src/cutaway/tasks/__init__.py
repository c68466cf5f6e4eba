"""What people do with a model, one file each: text or an image in, a result out."""
