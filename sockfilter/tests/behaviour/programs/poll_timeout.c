/* Time-outs of poll and ppoll are neither too short nor too long. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    struct pollfd p = {.fd = e.server, .events = POLLIN};
    double t = seconds();
    TRY(poll(&p, 1, 0));
    say("%s", took(t, 0));
    t = seconds();
    TRY(poll(&p, 1, 70));
    say("%s", took(t, 0.070));
    struct timespec fine = {0, 30500000}, bad = {0, 1000000000}, negative = {-1, 0};
    t = seconds();
    TRY(ppoll(&p, 1, &fine, NULL));
    say("%s", took(t, 0.0305));
    TRY(ppoll(&p, 1, &bad, NULL));
    TRY(ppoll(&p, 1, &negative, NULL));
    say("%ld", fine.tv_nsec);
}
