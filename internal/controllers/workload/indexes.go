package workload

import (
	"slices"
	"strconv"
	"strings"
)

// indexSet is a set of completion indexes: ranges in ascending order that neither touch nor overlap.
type indexSet []indexRange

// indexRange is a range of indexes, both ends included.
type indexRange struct{ first, last int }

// parseIndexes parses "1,3-5,7" and ignores malformed indexes and those not below limit.
func parseIndexes(text string, limit int) indexSet {
	var runs []indexRange
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		if err != nil || from >= limit {
			continue
		}
		to := from
		if isRange {
			if to, err = strconv.Atoi(last); err != nil {
				continue
			}
		}
		runs = append(runs, indexRange{from, min(to, limit-1)})
	}
	return indexSet(nil).union(runs)
}

// String formats the set as "1,3-5,7"; a range of two is written "3,4".
func (s indexSet) String() string {
	var parts []string
	for _, r := range s {
		parts = append(parts, strconv.Itoa(r.first))
		switch {
		case r.last == r.first+1:
			parts = append(parts, strconv.Itoa(r.last))
		case r.last > r.first:
			parts[len(parts)-1] += "-" + strconv.Itoa(r.last)
		}
	}
	return strings.Join(parts, ",")
}

// union returns the union of two sets.
func (s indexSet) union(other []indexRange) indexSet {
	all := slices.Concat(s, other)
	slices.SortFunc(all, func(a, b indexRange) int { return a.first - b.first })
	var union indexSet
	for _, r := range all {
		if n := len(union); n > 0 && r.first <= union[n-1].last+1 {
			union[n-1].last = max(union[n-1].last, r.last)
		} else {
			union = append(union, r)
		}
	}
	return union
}

// withIndexes returns the set with the indexes added.
func (s indexSet) withIndexes(single []int) indexSet {
	runs := make([]indexRange, len(single))
	for i, index := range single {
		runs[i] = indexRange{index, index}
	}
	return s.union(runs)
}

func (s indexSet) has(index int) bool {
	i, _ := slices.BinarySearchFunc(s, index, func(r indexRange, index int) int { return r.last - index })
	return i < len(s) && s[i].first <= index
}

func (s indexSet) size() (n int) {
	for _, r := range s {
		n += r.last - r.first + 1
	}
	return n
}

// overlap is the number of indexes in both sets.
func (s indexSet) overlap(other indexSet) (n int) {
	for i, j := 0, 0; i < len(s) && j < len(other); {
		n += max(0, min(s[i].last, other[j].last)-max(s[i].first, other[j].first)+1)
		if s[i].last < other[j].last {
			i++
		} else {
			j++
		}
	}
	return n
}

// firstMissing returns the lowest n indexes below limit that are not in the set.
func (s indexSet) firstMissing(n, limit int) []int {
	var missing []int
	next := 0
	for _, r := range append(slices.Clone(s), indexRange{limit, limit}) {
		for ; next < min(r.first, limit) && len(missing) < n; next++ {
			missing = append(missing, next)
		}
		next = max(next, r.last+1)
	}
	return missing
}
