/* close of a descriptor that another thread is in a call on: the call goes on with what the descriptor was, until it ends. */
#include "behaviour.h"

static struct ends e;
static int s, q;
static char much[8 << 20], result_line[64];
static void *waits(void *way) {
    struct epoll_event v;
    char b = 0;
    long result = 0;
    this_thread();
    switch ((long)way) {
    case 0: result = recv(e.server, &b, 1, 0); break;
    case 1: result = accept(s, NULL, NULL) >= 0; break;
    case 2: result = send(e.server, much, sizeof much, 0); break;
    case 3: result = epoll_wait(q, &v, 1, -1); break;
    case 4: result = recv(e.server, &b, 1, 0); break;
    }
    const char *error = result == -1 ? strerrorname_np(errno) : "";
    snprintf(result_line, sizeof result_line, "%ld: %ld %s", (long)way, result, error);
    if ((long)way == 3) say("%d", v.data.fd);
    return NULL;
}
static pthread_t begins(long way) {
    pthread_t t;
    registered_thread = 0;
    pthread_create(&t, NULL, waits, (void *)way);
    await_thread_asleep();
    return t;
}
static void joined(pthread_t t) {
    pthread_join(t, NULL);
    say("%s", result_line);
}
int main(void) {
    s = listener();
    char b;
    /* recv gets what comes; then the connection ends. */
    e = ends_at(s);
    pthread_t t = begins(0);
    TRY(close(e.server));
    TRY(recv(e.client, &b, 1, MSG_DONTWAIT));
    TRY(send(e.client, "x", 1, 0));
    joined(t);
    TRY(recv(e.client, &b, 1, 0));
    close(e.client);
    /* send sends all. */
    e = ends_at(s);
    t = begins(2);
    TRY(close(e.server));
    drain(e.client, sizeof much);
    joined(t);
    TRY(recv(e.client, &b, 1, 0));
    close(e.client);
    /* recv sees the other's end. */
    e = ends_at(s);
    t = begins(4);
    TRY(close(e.server));
    TRY(shutdown(e.client, SHUT_WR));
    joined(t);
    close(e.client);
    /* epoll_wait goes on with a set that has no descriptor any more. */
    e = ends_at(s);
    q = MUST(epoll_create1(0));
    struct epoll_event v = {.events = EPOLLIN, .data.fd = 77};
    MUST(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    t = begins(3);
    TRY(close(q));
    send(e.client, "x", 1, 0);
    joined(t);
    /* accept takes one more. */
    t = begins(1);
    struct sockaddr_in a = where(s);
    TRY(close(s));
    int c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    joined(t);
    int d = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(connect(d, (struct sockaddr *)&a, sizeof a));
}
