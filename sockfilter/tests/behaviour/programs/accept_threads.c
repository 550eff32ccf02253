/* Threads that accept from one listener each get connections, none twice. */
#include "behaviour.h"

enum { THREADS = 4, EACH = 10 };
static int s;
static void *accepts(void *unused) {
    for (int i = 0; i < EACH; i++) {
        int c = MUST(accept(s, NULL, NULL));
        char b;
        if (read(c, &b, 1) == 1) write(c, &b, 1);
        close(c);
    }
    return NULL;
}
int main(void) {
    s = listener();
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&t[i], NULL, accepts, NULL);
    int good = 0;
    for (int i = 0; i < THREADS * EACH; i++) {
        int c = dial(s);
        char b = i, got = 0;
        write(c, &b, 1);
        good += read(c, &got, 1) == 1 && got == b;
        good += read(c, &got, 1) == 0;
        close(c);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    say("%d", good);
}
