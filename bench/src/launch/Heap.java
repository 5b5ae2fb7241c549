// A Java program at its start: the virtual machine comes up, compiles this, and its heap is filled.
import java.util.HashMap;
import java.util.Map;

public class Heap {
    record Entry(String name, int value, int[] list) {}

    public static void main(String[] words) throws Exception {
        // An entry is 220 bytes or so: an object, its string, its list and its place in the table.
        int entries = (int) (Long.parseLong(words[0]) * (1 << 20) / 220);
        Map<Integer, Entry> heap = new HashMap<>();
        int state = 12345;
        for (int n = 0; n < entries; n++) {
            state = (state * 1103515245 + 12345) & 0x7fffffff;
            String word = String.format("%08x", state);
            heap.put(n, new Entry(word + word + word, state, new int[] {n, n + 1, state}));
        }
        long check = 0;
        for (int n = 0; n < entries / 64; n++) {
            state = (state * 1103515245 + 12345) & 0x7fffffff;
            Entry entry = heap.get(state % entries);
            check = (check * 31 + entry.value() + entry.name().length() + entry.list()[1]) % 1000000007;
        }
        System.out.println("ready " + check);
        System.in.read();
    }
}
