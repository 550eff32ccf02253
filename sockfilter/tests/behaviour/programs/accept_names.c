/* accept returns the peer's name: complete, truncated, or not at all. */
#include "behaviour.h"

int main(void) {
    int s = listener();
    struct sockaddr_in a, b;
    socklen_t len = sizeof a;
    int c = dial(s);
    TRY(accept(s, (struct sockaddr *)&a, &len) >= 0);
    b = where(c);
    say("%u, same %d", len, memcmp(&a, &b, 8) == 0);
    dial(s);
    len = 4;
    TRY(accept(s, (struct sockaddr *)&a, &len) >= 0);
    say("%u", len);
    dial(s);
    len = 55;
    TRY(accept(s, NULL, &len) >= 0);
    say("%u", len);
    TRY(accept(c, NULL, NULL));
    TRY(accept(bound(), NULL, NULL));
}
