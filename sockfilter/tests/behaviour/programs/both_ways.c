/* Much data in both directions at once, by two threads an end. */
#include "behaviour.h"

static struct ends e;
static void *writes(void *fd) {
    static char much[65536];
    for (long left = 8 << 20; left > 0;) left -= MUST(write((long)fd, much, sizeof much));
    shutdown((long)fd, SHUT_WR);
    return NULL;
}
static void *reads(void *fd) {
    char *b = malloc(65536);
    long total = 0, n;
    while ((n = MUST(read((long)fd, b, 65536))) > 0) total += n;
    return (void *)total;
}
int main(void) {
    e = ends();
    pthread_t t[4];
    void *total;
    pthread_create(&t[0], NULL, writes, (void *)(long)e.client);
    pthread_create(&t[1], NULL, writes, (void *)(long)e.server);
    pthread_create(&t[2], NULL, reads, (void *)(long)e.client);
    pthread_create(&t[3], NULL, reads, (void *)(long)e.server);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], &total);
        say("%ld", (long)total);
    }
}
