#include "testing.h"
#include "vision/image.h"
#include <stdio.h>
int main(void){return 0;}
