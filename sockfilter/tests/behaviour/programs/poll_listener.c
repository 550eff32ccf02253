/* A listener is readable when a connection waits, and no longer when it is taken. */
#include "behaviour.h"

static int s;
static void *dials(void *unused) {
    await_thread_asleep();
    return (void *)(long)dial(s);
}
int main(void) {
    s = listener();
    struct pollfd p = {.fd = s, .events = POLLIN | POLLOUT};
    TRY(poll(&p, 1, 0));
    pthread_t t;
    this_thread();
    pthread_create(&t, NULL, dials, NULL);
    TRY(poll(&p, 1, -1));
    say("%x", p.revents);
    TRY(accept(s, NULL, NULL) >= 0);
    TRY(poll(&p, 1, 0));
    pthread_join(t, NULL);
}
