/* An epoll set is closed while a thread waits on it: the wait goes on to its own end, whatever else wakes it. */
#include "behaviour.h"

static struct ends e, other;
static int q, pair[2];
static char result_line[64];

static void *waits(void *time) {
    struct epoll_event v = {0};
    double since = seconds();
    this_thread();
    long result = epoll_wait(q, &v, 1, (long)time);
    const char *error = result == -1 ? strerrorname_np(errno) : "";
    const char *right = (long)time > 0 ? took(since, (long)time / 1000.0) : "";
    snprintf(result_line, sizeof result_line, "%ld %s, data %d %s", result, error, result == 1 ? v.data.fd : 0, right);
    return NULL;
}
static pthread_t begins(long time) {
    pthread_t t;
    registered_thread = 0;
    pthread_create(&t, NULL, waits, (void *)time);
    await_thread_asleep();
    return t;
}
/* What other connections of the process have to say. */
static void noise(void) {
    char b;
    for (int i = 0; i < 3; i++) {
        MUST(send(other.client, "n", 1, 0));
        MUST(recv(other.server, &b, 1, 0));
        await_asleep(registered_thread);
    }
}
static void joined(pthread_t t, const char *what) {
    char b;
    pthread_join(t, NULL);
    say("%s: %s", what, result_line);
    recv(e.server, &b, 1, MSG_DONTWAIT);
    recv(pair[0], &b, 1, MSG_DONTWAIT);
}
static void made(void) {
    struct epoll_event v = {.events = EPOLLIN, .data.fd = 77};
    q = MUST(epoll_create1(0));
    MUST(epoll_ctl(q, EPOLL_CTL_ADD, e.server, &v));
    v.data.fd = 88;
    MUST(epoll_ctl(q, EPOLL_CTL_ADD, pair[0], &v));
}
int main(void) {
    e = ends(), other = ends();
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    struct epoll_event v = {.events = EPOLLIN, .data.fd = 99};
    made();
    pthread_t t = begins(-1);
    TRY(close(q));
    noise();
    send(e.client, "x", 1, 0);
    joined(t, "a connection");
    made();
    t = begins(-1);
    TRY(close(q));
    noise();
    send(pair[1], "x", 1, 0);
    joined(t, "the kernel's");
    made();
    t = begins(500);
    TRY(close(q));
    noise();
    joined(t, "time-out");
    /* The number is another's, a duplicate stays. */
    made();
    t = begins(-1);
    int copy = MUST(dup(q));
    TRY(dup2(pair[1], q) == q);
    noise();
    send(e.client, "x", 1, 0);
    await_asleep(registered_thread);
    joined(t, "replaced");
    TRY(epoll_wait(copy, &v, 1, 0));
    close(q), close(copy);
    /* Inside another set. */
    made();
    int outer = MUST(epoll_create1(0));
    MUST(epoll_ctl(outer, EPOLL_CTL_ADD, q, &v));
    t = begins(-1);
    TRY(close(q));
    noise();
    send(e.client, "x", 1, 0);
    joined(t, "nested");
    TRY(epoll_wait(outer, &v, 1, 0));
    /* Members come and go. */
    made();
    t = begins(-1);
    copy = MUST(dup(q));
    TRY(close(q));
    noise();
    TRY(epoll_ctl(copy, EPOLL_CTL_DEL, e.server, NULL));
    send(e.client, "x", 1, 0);
    noise();
    v.data.fd = 66;
    TRY(epoll_ctl(copy, EPOLL_CTL_ADD, e.server, &v));
    joined(t, "added");
    close(copy);
    made();
    t = begins(-1);
    TRY(close(q));
    noise();
    pthread_cancel(t);
    void *result;
    pthread_join(t, &result);
    TRY(result == PTHREAD_CANCELED);
    TRY(epoll_wait(q, &v, 1, 0));
}
