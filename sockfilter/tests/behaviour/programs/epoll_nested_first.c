/* A set that is in another already gets its first connection while a thread sleeps on the outer one: it wakes when there
 * is something to read, and not before. So it is with a socket that was a member before it was connected. */
#include "behaviour.h"

static int inner, outer;
static void *waits(void *what) {
    struct epoll_event got[4];
    struct pollfd p = {outer, POLLIN};
    this_thread();
    long found = what ? poll(&p, 1, -1) : epoll_wait(outer, got, 4, -1);
    return (void *)(found * 10 + epoll_wait(inner, got, 4, 0));
}

int main(void) {
    int s = listener();
    struct epoll_event v = {.events = EPOLLIN | EPOLLET, .data.u32 = 1}, got[4];
    inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    pthread_t t;
    void *found;
    char b;
    for (int round = 0; round < 4; round++) {
        registered_thread = 0;
        pthread_create(&t, NULL, waits, round % 2 ? &round : NULL);
        await_thread_asleep();
        struct ends e = ends_at(s);
        MUST(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
        await_thread_asleep();
        send(e.client, "x", 1, 0);
        pthread_join(t, &found);
        say("%ld", (long)found);
        epoll_wait(outer, got, 4, 0);
        if (round == 1) {
            close(inner), close(outer);
            inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
            TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
        }
    }
    /* Ready when it comes. */
    struct ends e = ends_at(s);
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
    TRY(epoll_wait(outer, got, 4, 0));
    TRY(epoll_wait(outer, got, 4, 0));
    int c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    v.events = EPOLLIN, v.data.u32 = 5;
    struct sockaddr_in a = where(s);
    MUST(connect(c, (struct sockaddr *)&a, sizeof a));
    int d = MUST(accept(s, NULL, NULL));
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, c, &v));
    TRY(send(d, "x", 1, 0));
    TRY(epoll_wait(outer, got, 4, -1));
    /* The earlier edge is still to be reported. */
    TRY(epoll_wait(inner, got, 4, 0));
}
