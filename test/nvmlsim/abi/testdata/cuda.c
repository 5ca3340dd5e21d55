/* Loads the CUDA stand-in given as its argument as programs do, and asks it. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int (*init)(unsigned int), (*version)(int *), (*count)(int *), (*get)(int *, int);
	int (*name)(char *, int, int);
	int number = 0, gpus = 0, device = -1;
	char text[64] = "";
	void *cuda = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;

	if (!cuda) {
		printf("cannot load: %s\n", dlerror());
		return 1;
	}
	*(void **)&init = dlsym(cuda, "cuInit");
	*(void **)&version = dlsym(cuda, "cuDriverGetVersion");
	*(void **)&count = dlsym(cuda, "cuDeviceGetCount");
	*(void **)&get = dlsym(cuda, "cuDeviceGet");
	*(void **)&name = dlsym(cuda, "cuDeviceGetName");
	printf("%d ", count(&gpus));
	printf("%d ", init(1));
	printf("%d ", init(0));
	printf("%d:", version(&number));
	printf("%d ", number);
	printf("%d:", count(&gpus));
	printf("%d ", gpus);
	printf("%d ", get(&device, gpus));
	printf("%d:", get(&device, gpus - 1));
	printf("%d ", device);
	printf("%d:", name(text, sizeof text, device));
	printf("%s\n", text);
	return 0;
}
