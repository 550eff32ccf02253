/* What web servers do: TCP_CORK, a head, files of all lengths by sendfile, and the cork pulled. */
#include "behaviour.h"

static long total;
static unsigned sum;

static void *reader(void *socket) {
    static char b[1 << 16];
    for (long n; (n = recv((int)(intptr_t)socket, b, sizeof b, 0)) > 0;) {
        total += n;
        for (long i = 0; i < n; i++) sum = sum * 31 + (unsigned char)b[i];
    }
    return NULL;
}

int main(void) {
    static char file[300000];
    const long lengths[] = {0, 1, 100, 4095, 4096, 16000, 16384, 16448, 70000, 300000};
    struct ends e = ends();
    int f = MUST(open("file", O_RDWR | O_CREAT | O_TRUNC, 0600)), on = 1, off = 0;
    for (long i = 0; i < (long)sizeof file; i++) file[i] = (char)(i * 7 + i / 251);
    MUST(write(f, file, sizeof file));
    pthread_t thread;
    pthread_create(&thread, NULL, reader, (void *)(intptr_t)e.server);
    for (unsigned n = 0; n < sizeof lengths / sizeof *lengths; n++) {
        char head[200];
        int len = snprintf(head, sizeof head, "length %ld\n", lengths[n]);
        off_t at = (off_t)(n * 3);
        MUST(setsockopt(e.client, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
        MUST(send(e.client, head, (size_t)len, 0));
        while (at < lengths[n] && MUST(sendfile(e.client, f, &at, (size_t)(lengths[n] - at))) > 0) {}
        say("%ld of %ld", (long)at, lengths[n]);
        MUST(send(e.client, "end\n", 4, 0));
        MUST(setsockopt(e.client, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    }
    off_t beyond = sizeof file;
    TRY(sendfile(e.client, f, &beyond, 10));
    /* A file that grows while it is sent, and one that has no page in memory. */
    MUST(posix_fadvise(f, 0, 0, POSIX_FADV_DONTNEED));
    off_t at = 100000;
    while (at < 200000) MUST(sendfile(e.client, f, &at, (size_t)(200000 - at)));
    short narrow = 1;
    TRY(setsockopt(e.client, IPPROTO_TCP, TCP_CORK, &narrow, sizeof narrow));
    TRY(setsockopt(e.client, IPPROTO_TCP, TCP_CORK, NULL, sizeof on));
    int value = -1;
    socklen_t len = 2;
    TRY(getsockopt(e.client, IPPROTO_TCP, TCP_CORK, &value, &len));
    say("%d, %d bytes", value & 0xffff, (int)len);
    MUST(shutdown(e.client, SHUT_WR));
    pthread_join(thread, NULL);
    say("%ld bytes, sum %u", total, sum);
}
