import com.espertech.esper.common.client.configuration.Configuration;
import com.espertech.esper.compiler.client.CompilerArguments;
import com.espertech.esper.compiler.client.EPCompilerProvider;
import com.espertech.esper.runtime.client.EPRuntime;
import com.espertech.esper.runtime.client.EPRuntimeProvider;

/** The join and the windows of csp-messages-evaluation in Esper: prints the nanoseconds of an event for each, after a warm-up. */
public class EsperPeer {
    static final int DISTINCT = 256;
    static final String JOIN = "select a.number as number, a.source as source, a.departure as departure, b.delay as delay, b.tail as tail "
        + "from FlightA#time(60 sec) as a, FlightB#time(60 sec) as b where a.number = b.number";
    static final String WINDOWS = "select source, count(*) as flights, avg(delay) as delay, max(distance) as distance "
        + "from FlightA#ext_timed_batch(departure, 3600 sec) group by source";

    public static class Flight {
        int number, delay, distance;
        long departure;
        String source, tail;
        public int getNumber() { return number; }
        public int getDelay() { return delay; }
        public int getDistance() { return distance; }
        public long getDeparture() { return departure; }
        public String getSource() { return source; }
        public String getTail() { return tail; }
    }
    public static class FlightA extends Flight { }
    public static class FlightB extends Flight { }

    static <F extends Flight> F flight(F flight, int at, int number, long millis) {
        flight.number = number;
        flight.delay = at;
        flight.distance = at;
        flight.departure = millis;
        flight.source = new String[] {"ATLX", "EWRX", "JFKX", "LGAX"}[at % 4];
        flight.tail = "N" + at;
        return flight;
    }

    static long rows;

    /** Nanoseconds of an event. */
    static double run(String epl, boolean join, int events) throws Exception {
        Configuration configuration = new Configuration();
        configuration.getRuntime().getThreading().setInternalTimerEnabled(false);
        configuration.getCommon().addEventType(FlightA.class);
        configuration.getCommon().addEventType(FlightB.class);
        EPRuntime runtime = EPRuntimeProvider.getRuntime(epl + events, configuration);
        var compiled = EPCompilerProvider.getCompiler().compile(epl, new CompilerArguments(configuration));
        runtime.getDeploymentService().deploy(compiled).getStatements()[0]
            .addListener((added, removed, statement, r) -> rows += added == null ? 0 : added.length);
        rows = 0;
        long begin = 0, warm = events / 4;
        for (int n = 0; n < events + warm; n++) {
            if (n == warm) {
                begin = System.nanoTime();
            }
            int number = join ? n / 2 : n;
            long millis = number * 1000L;
            if (n % 64 == 0) {
                runtime.getEventService().advanceTime(millis);
            }
            if (join && n % 2 == 1) {
                runtime.getEventService().sendEventBean(flight(new FlightB(), n % DISTINCT, number, millis), "FlightB");
            } else {
                runtime.getEventService().sendEventBean(flight(new FlightA(), n % DISTINCT, number, millis), "FlightA");
            }
        }
        double nanos = (System.nanoTime() - begin) / (double) events;
        runtime.destroy();
        long least = join ? (events + warm) / 2 : (events + warm) / 3600 * 4 - 4;
        if (rows < least) {
            throw new IllegalStateException(rows + " rows instead of " + least);
        }
        return nanos;
    }

    public static void main(String[] arguments) throws Exception {
        int events = Integer.parseInt(arguments[0]);
        System.out.printf("join %.1f%n", run(JOIN, true, events));
        System.out.printf("windows %.1f%n", run(WINDOWS, false, events));
    }
}
