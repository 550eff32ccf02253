/* Java's way to close: shutdown both ways, then dup2, then close; the reader wakes. */
#include "behaviour.h"

static struct ends e;
static void *reads(void *unused) {
    char b;
    this_thread();
    TRY(read(e.server, &b, 1));
    return NULL;
}
int main(void) {
    e = ends();
    pthread_t t;
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    close(pair[1]);
    pthread_create(&t, NULL, reads, NULL);
    await_thread_asleep();
    MUST(shutdown(e.server, SHUT_RDWR));
    pthread_join(t, NULL);
    TRY(dup2(pair[0], e.server) == e.server);
    char b;
    TRY(read(e.server, &b, 1));
    TRY(close(e.server));
    TRY(read(e.client, &b, 1));
}
