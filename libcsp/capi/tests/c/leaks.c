/* A thousand contexts with a channel each, one after another: descriptors and memory are as before. */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <unistd.h>

static int descriptors(void)
{
	int count = 0;
	DIR *folder = opendir("/proc/self/fd");
	CHECK(folder != NULL);
	while (readdir(folder) != NULL)
		count++;
	closedir(folder);
	return count;
}

/* Lines of /proc/self/maps: mappings. */
static int mappings(void)
{
	int count = 0;
	FILE *file = fopen("/proc/self/maps", "r");
	CHECK(file != NULL);
	for (int c; (c = getc(file)) != EOF;)
		count += c == '\n';
	fclose(file);
	return count;
}

/* Resident bytes. */
static long resident(void)
{
	long size, pages;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file != NULL && fscanf(file, "%ld %ld", &size, &pages) == 2);
	fclose(file);
	return pages * sysconf(_SC_PAGESIZE);
}

static void once(void)
{
	struct pair p = pair_up(NULL, "leaks", 0);
	struct csp_buffer buffer = filled(p.client, "x");
	GIVES(0, csp_send(p.at_client, &buffer, 0, 0, 0));
	NEXT(p.server, CSP_RECEIVED); /* neither buffer is released: closing the context does */
	close_pair(&p);
}

int main(int argc, char **argv)
{
	int times = argc > 1 ? atoi(argv[1]) : 1000;
	for (int i = 0; i < 20; i++)
		once();
	int descriptors_before = descriptors(), mappings_before = mappings();
	long resident_before = resident();
	for (int i = 0; i < times; i++)
		once();
	printf("descriptors %d, %d; mappings %d, %d; resident %ld, %ld\n", descriptors_before, descriptors(),
	       mappings_before, mappings(), resident_before, resident());
	CHECK(descriptors() == descriptors_before);
	/* A sanitizer keeps freed memory for a while, and finds leaks by itself; argument 2 states that one is in use. */
	CHECK(argc > 2 || mappings() <= mappings_before + 4);
	CHECK(argc > 2 || resident() < resident_before + (1 << 20));
	puts("leaks: good");
	return 0;
}
