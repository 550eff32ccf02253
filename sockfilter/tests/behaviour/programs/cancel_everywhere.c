/* accept, poll, select, epoll_wait and receiving calls are cancellation points; cancel_sending has those that send. */
#include "behaviour.h"

static struct ends e;
static int s, q;
static void *waits(void *way) {
    struct epoll_event v;
    struct pollfd p = {e.server, POLLIN};
    fd_set r;
    FD_ZERO(&r);
    FD_SET(e.server, &r);
    char b;
    struct iovec i = {&b, 1};
    this_thread();
    switch ((long)way) {
    case 0: accept(s, NULL, NULL); break;
    case 1: poll(&p, 1, -1); break;
    case 2: select(e.server + 1, &r, NULL, NULL, NULL); break;
    case 3: epoll_wait(q, &v, 1, -1); break;
    case 4: readv(e.server, &i, 1); break;
    case 5: recv(e.server, &b, 1, MSG_WAITALL); break;
    }
    return NULL;
}
int main(void) {
    s = listener();
    e = ends_at(s);
    q = epoll_create1(0);
    struct epoll_event v = {.events = EPOLLIN};
    epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v);
    cancel_each(waits, 6);
    send(e.client, "x", 1, 0);
    TRY(epoll_wait(q, &v, 1, -1));
    TRY(poll((struct pollfd[]){{e.server, POLLIN}}, 1, -1));
}
