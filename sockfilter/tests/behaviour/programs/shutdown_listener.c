/* shutdown of a listener wakes threads in accept. */
#include "behaviour.h"

static int s;
static void *accepts(void *unused) {
    this_thread();
    accept(s, NULL, NULL);
    return (void *)(long)errno;
}
int main(void) {
    s = listener();
    struct ends e = ends_at(s);
    pthread_t t;
    pthread_create(&t, NULL, accepts, NULL);
    await_thread_asleep();
    TRY(shutdown(s, SHUT_RDWR));
    void *error;
    pthread_join(t, &error);
    say("%s", strerrorname_np((long)error));
    TRY(accept(s, NULL, NULL));
}
