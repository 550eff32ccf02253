/* A connect that waits is interrupted by a handler without SA_RESTART, and is a cancellation point. */
#include "behaviour.h"

static int s, fresh;
static struct sockaddr_in a;
static pthread_t waiter;
static void nothing(int sig) {}
static void *signals(void *unused) {
    await_thread_asleep();
    pthread_kill(waiter, SIGUSR1);
    return NULL;
}
static void *connects(void *unused) {
    this_thread();
    connect(fresh, (struct sockaddr *)&a, sizeof a);
    return NULL;
}
int main(void) {
    s = bound();
    MUST(listen(s, 0));
    a = where(s);
    /* As many as are queued, and some on their way. */
    for (int i = 0; i < 4; i++) {
        int c = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        connect(c, (struct sockaddr *)&a, sizeof a);
    }
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGUSR1, &action, NULL);
    waiter = pthread_self();
    pthread_t t;
    this_thread();
    pthread_create(&t, NULL, signals, NULL);
    int c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    pthread_join(t, NULL);
    nonblocking(c);
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    registered_thread = 0;
    fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    void *result;
    pthread_create(&t, NULL, connects, NULL);
    await_thread_asleep();
    pthread_cancel(t);
    pthread_join(t, &result);
    say("cancelled %d", result == PTHREAD_CANCELED);
}
