/* poll, ppoll and select of an inner and an outer set: ready when a member is, and no longer. */
#include "behaviour.h"

static struct ends e;
static int inner, outer;

static void look(void) {
    struct pollfd p[] = {{inner, POLLIN | POLLOUT}, {outer, POLLIN | POLLRDNORM}, {outer, POLLOUT}};
    struct timespec none = {0}, some = {0, 1000000};
    struct timeval t = {0};
    fd_set r, w;
    TRY(poll(p, 3, 0));
    say("%x %x %x", p[0].revents, p[1].revents, p[2].revents);
    TRY(ppoll(p, 3, &some, NULL));
    say("%x %x %x", p[0].revents, p[1].revents, p[2].revents);
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_SET(inner, &r);
    FD_SET(outer, &r);
    FD_SET(outer, &w);
    TRY(select(outer + 1, &r, &w, NULL, &t));
    say("%d %d %d", FD_ISSET(inner, &r), FD_ISSET(outer, &r), FD_ISSET(outer, &w));
    FD_SET(inner, &r);
    TRY(pselect(outer + 1, &r, NULL, NULL, &none, NULL));
}

static void *later(void *unused) {
    await_thread_asleep();
    send(e.client, "x", 1, 0);
    return NULL;
}

int main(void) {
    struct epoll_event v = {.events = EPOLLIN}, got[4];
    e = ends();
    inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    TRY(epoll_ctl(inner, EPOLL_CTL_ADD, e.server, &v));
    look();
    TRY(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &v));
    look();
    char b[8];
    for (int way = 0; way < 6; way++) {
        pthread_t t;
        struct pollfd p = {way % 2 ? inner : outer, POLLIN};
        fd_set r;
        FD_ZERO(&r);
        FD_SET(p.fd, &r);
        registered_thread = 0;
        this_thread();
        pthread_create(&t, NULL, later, NULL);
        if (way < 2) TRY(poll(&p, 1, -1));
        else if (way < 4) TRY(select(p.fd + 1, &r, NULL, NULL, NULL));
        else TRY(epoll_wait(p.fd, got, 4, -1));
        pthread_join(t, NULL);
        look();
        if (way == 3) TRY(epoll_wait(inner, got, 4, -1));
        TRY(read(e.server, b, 8));
        look();
    }
    double since = seconds();
    struct pollfd p = {outer, POLLIN};
    TRY(poll(&p, 1, 50));
    TRY(epoll_wait(inner, got, 4, 50));
    TRY(epoll_wait(outer, got, 4, 50));
    say("%s", took(since, 0.15));
}
