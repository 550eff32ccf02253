/* sendfile without an offset starts at the file's position and advances it; large files arrive complete. */
#include "behaviour.h"

static struct ends e;
static void *reads(void *unused) {
    static char b[65536];
    long total = 0, sum = 0, n;
    while ((n = read(e.server, b, sizeof b)) > 0) {
        for (long i = 0; i < n; i++) sum = sum * 31 + b[i];
        total += n;
    }
    say("%ld bytes, sum %lx", total, sum);
    return NULL;
}
int main(void) {
    e = ends();
    int f = MUST(memfd_create("file", 0));
    static char much[3000000];
    for (int i = 0; i < sizeof much; i++) much[i] = i * 7 >> 3;
    MUST(write(f, much, sizeof much));
    lseek(f, 100, SEEK_SET);
    pthread_t t;
    pthread_create(&t, NULL, reads, NULL);
    long left = sizeof much - 100, n;
    while (left > 0 && (n = sendfile(e.client, f, NULL, left)) > 0) left -= n;
    say("left %ld, position %ld", left, (long)lseek(f, 0, SEEK_CUR));
    TRY(sendfile(e.client, f, NULL, 10));
    shutdown(e.client, SHUT_WR);
    pthread_join(t, NULL);
}
