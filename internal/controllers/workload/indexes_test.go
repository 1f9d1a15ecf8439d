package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestParseIndexes(t *testing.T) {
	for _, test := range []struct {
		text  string
		limit int
		want  string
		total int
	}{
		{"", 0, "", 0}, {"", 5, "", 0}, {"0", 0, "", 0}, {"0", 1, "0", 1}, {"0", 5, "0", 1}, {"4", 5, "4", 1}, {"5", 5, "", 0}, {"6", 5, "", 0},
		{"0-4", 5, "0-4", 5}, {"0-5", 5, "0-4", 5}, {"0-100", 5, "0-4", 5}, {"3-9", 5, "3,4", 2}, {"4-9", 5, "4", 1}, {"5-9", 5, "", 0},
		{"0,1", 9, "0,1", 2}, {"0,1,2", 9, "0-2", 3}, {"0,2", 9, "0,2", 2}, {"1-3,5-7", 9, "1-3,5-7", 6}, {"1-3,4-7", 9, "1-7", 7}, {"1-3,4", 9, "1-4", 4}, {"1-3,7-20", 9, "1-3,7,8", 5},
		{"2-2", 9, "2", 1}, {"7,3,5", 9, "3,5,7", 3}, {"3-5,1", 9, "1,3-5", 4}, {"3,3,3", 9, "3", 1}, {"1-5,3-7", 9, "1-7", 7},
		{",", 9, "", 0}, {"1,", 9, "1", 1}, {",1", 9, "1", 1}, {"a", 9, "", 0}, {"a-b", 9, "", 0}, {"1-", 9, "", 0}, {"-1", 9, "", 0}, {"1,a,3", 9, "1,3", 2}, {"1-x,4", 9, "4", 1}, {" 1", 9, "", 0}, {"1.5", 9, "", 0},
		{"0-999999999", 1000000000, "0-999999999", 1000000000},
	} {
		got := parseIndexes(test.text, test.limit)
		if got.String() != test.want || got.size() != test.total {
			t.Errorf("%q below %d is %q with %d indexes, want %q with %d", test.text, test.limit, got, got.size(), test.want, test.total)
		}
		if again := parseIndexes(got.String(), test.limit); again.String() != got.String() {
			t.Errorf("%q comes back as %q", got, again)
		}
	}
}

// TestIndexesModel does everything the sets can do beside a list of truths.
func TestIndexesModel(t *testing.T) {
	const limit = 24
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 8))
		make2 := func() (in [limit]bool, set indexSet) {
			var single []int
			for i := range limit {
				if random.IntN(3) == 0 {
					in[i] = true
					single = append(single, i)
				}
			}
			random.Shuffle(len(single), func(i, j int) { single[i], single[j] = single[j], single[i] })
			return in, indexSet(nil).withIndexes(append(single, single[:len(single)/2]...))
		}
		inA, a := make2()
		inB, b := make2()
		var both, either int
		var words []string
		for i := 0; i < limit; i++ {
			if inA[i] && inB[i] {
				both++
			}
			if inA[i] || inB[i] {
				either++
			}
			if a.has(i) != inA[i] {
				t.Fatalf("seed %d: %s has %d: %v", seed, a, i, !inA[i])
			}
		}
		for i := 0; i < limit; i++ {
			if !inA[i] {
				continue
			}
			last := i
			for last+1 < limit && inA[last+1] {
				last++
			}
			switch last - i {
			case 0:
				words = append(words, fmt.Sprint(i))
			case 1:
				words = append(words, fmt.Sprint(i), fmt.Sprint(last))
			default:
				words = append(words, fmt.Sprintf("%d-%d", i, last))
			}
			i = last
		}
		if want := strings.Join(words, ","); a.String() != want {
			t.Fatalf("seed %d: written %s, want %s", seed, a, want)
		}
		if a.overlap(b) != both || b.overlap(a) != both || a.union(b).size() != either || b.union(a).String() != a.union(b).String() || a.size()+b.size() != both+either {
			t.Fatalf("seed %d: %s and %s: %d in common, %d in either, want %d and %d", seed, a, b, a.overlap(b), a.union(b).size(), both, either)
		}
		for _, n := range []int{0, 1, 3, limit, limit + 5} {
			for _, below := range []int{0, 1, limit / 2, limit} {
				var want []int
				for i := 0; i < below && len(want) < n; i++ {
					if !inA[i] {
						want = append(want, i)
					}
				}
				if got := a.firstMissing(n, below); !slices.Equal(got, want) {
					t.Fatalf("seed %d: the first %d missing below %d in %s are %v, want %v", seed, n, below, a, got, want)
				}
			}
		}
	}
	if (indexSet)(nil).has(0) || (indexSet)(nil).size() != 0 || (indexSet)(nil).String() != "" || (indexSet)(nil).overlap(parseIndexes("0-9", 10)) != 0 {
		t.Error("the empty set is not empty")
	}
}
