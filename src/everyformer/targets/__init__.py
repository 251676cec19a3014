"""Functions to approximate: what a target is, and a gallery of them."""

from everyformer.targets.gallery import GALLERY as GALLERY
from everyformer.targets.gallery import centring as centring
from everyformer.targets.gallery import distance_to_maximum as distance_to_maximum
from everyformer.targets.gallery import first_token as first_token
from everyformer.targets.gallery import prefix_mean as prefix_mean
from everyformer.targets.gallery import reverse as reverse
from everyformer.targets.gallery import shift as shift
from everyformer.targets.gallery import smooth_bump as smooth_bump
from everyformer.targets.gallery import smooth_rank as smooth_rank
from everyformer.targets.gallery import soft_attention as soft_attention
from everyformer.targets.gallery import sort as sort
