/* A member added while another thread waits wakes it. */
#include "behaviour.h"

static int q;
static void *waits(void *unused) {
    struct epoll_event got[4];
    this_thread();
    TRY(epoll_wait(q, got, 4, 10000));
    say("%u", got[0].data.u32);
    return NULL;
}
int main(void) {
    struct ends e = ends();
    q = MUST(epoll_create1(0));
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    for (int round = 0; round < 2; round++) {
        pthread_t t;
        registered_thread = 0;
        pthread_create(&t, NULL, waits, NULL);
        await_thread_asleep();
        struct epoll_event v = {.events = EPOLLIN | (round ? 0 : EPOLLET), .data.u32 = 5 + round};
        MUST(epoll_ctl(q, round ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, e.server, &v));
        pthread_join(t, NULL);
    }
}
