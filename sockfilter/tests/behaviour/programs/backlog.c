/* Connections wait before anyone accepts; their data too, and their ends. */
#include "behaviour.h"

int main(void) {
    int s = listener(), c[8];
    char b[8];
    for (int i = 0; i < 8; i++) {
        c[i] = dial(s);
        MUST(send(c[i], "abcdefgh", i + 1, 0));
        if (i % 2) close(c[i]);
    }
    for (int i = 0; i < 8; i++) {
        int t = MUST(accept(s, NULL, NULL));
        TRY(recv(t, b, i + 1, MSG_WAITALL));
        if (i % 2) TRY(recv(t, b, 8, 0));
        else TRY(recv(t, b, 8, MSG_DONTWAIT));
    }
}
