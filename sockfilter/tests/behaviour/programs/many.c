/* A thousand connections one after another, and a hundred at once; no descriptor is lost. */
#include "behaviour.h"

int main(void) {
    int s = listener(), before = dup(0), c[100], t[100];
    close(before);
    for (int i = 0; i < 1000; i++) {
        struct ends e = ends_at(s);
        char b;
        if (send(e.client, "x", 1, 0) != 1 || recv(e.server, &b, 1, 0) != 1) say("%d", i);
        close(e.client);
        close(e.server);
    }
    int after = dup(0);
    close(after);
    say("%d", after - before);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 10; i++) c[round * 10 + i] = dial(s);
        for (int i = 0; i < 10; i++) t[round * 10 + i] = MUST(accept(s, NULL, NULL));
    }
    for (int i = 0; i < 100; i++) write(c[i], &i, 4);
    int sum = 0;
    for (int i = 0; i < 100; i++) {
        int n = 0;
        read(t[i], &n, 4);
        sum += n;
    }
    say("%d", sum);
}
