/* shutdown wakes a thread that reads or writes. */
#include "behaviour.h"

static struct ends e;
static void *reads(void *unused) {
    char b;
    this_thread();
    TRY(read(e.server, &b, 1));
    return NULL;
}
static void *writes(void *unused) {
    static char much[64 << 20];
    this_thread();
    long n = send(e.server, much, sizeof much, MSG_NOSIGNAL);
    say("%d", n > 0 && n < sizeof much);
    TRY(send(e.server, much, 1, MSG_NOSIGNAL));
    return NULL;
}
int main(void) {
    e = ends();
    pthread_t t;
    pthread_create(&t, NULL, reads, NULL);
    await_thread_asleep();
    MUST(shutdown(e.server, SHUT_RD));
    pthread_join(t, NULL);
    registered_thread = 0;
    pthread_create(&t, NULL, writes, NULL);
    await_thread_asleep();
    MUST(shutdown(e.server, SHUT_WR));
    pthread_join(t, NULL);
}
