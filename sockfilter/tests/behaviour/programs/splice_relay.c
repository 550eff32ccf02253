/* A relay by splice, as proxies do it: socket, pipe, socket; every byte comes. */
#include "behaviour.h"

static struct ends in, out;
static void *feeds(void *unused) {
    static char much[1000000];
    for (int i = 0; i < sizeof much; i++) much[i] = i * 13 >> 2;
    for (int i = 0; i < sizeof much;) i += MUST(write(in.client, much + i, sizeof much - i));
    shutdown(in.client, SHUT_WR);
    return NULL;
}
static void *relays(void *unused) {
    int p[2];
    MUST(pipe(p));
    long n;
    while ((n = splice(in.server, NULL, p[1], NULL, 65536, SPLICE_F_MOVE | SPLICE_F_MORE)) > 0)
        while (n > 0) n -= MUST(splice(p[0], NULL, out.client, NULL, n, SPLICE_F_MOVE));
    say("relay ends with %ld", n);
    shutdown(out.client, SHUT_WR);
    return NULL;
}
int main(void) {
    in = ends();
    out = ends();
    pthread_t t[2];
    pthread_create(&t[0], NULL, feeds, NULL);
    pthread_create(&t[1], NULL, relays, NULL);
    static char b[65536];
    long total = 0, sum = 0, n;
    while ((n = read(out.server, b, sizeof b)) > 0) {
        for (long i = 0; i < n; i++) sum = sum * 31 + b[i];
        total += n;
    }
    pthread_join(t[0], NULL);
    pthread_join(t[1], NULL);
    say("%ld bytes, sum %lx", total, sum);
}
