package batch

import (
	"fmt"
	"strconv"
	"strings"
)

// interval is a range of indexes, both ends included. A list of indexes is written as intervals: "1,3-5,7".
type interval struct{ first, last int32 }

func parseInterval(text string, completions int32) (interval, error) {
	ends := strings.Split(text, "-")
	if len(ends) > 2 {
		return interval{}, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most two parts separated by '-'", text)
	}
	first, err := parseIndex(ends[0], completions)
	if err != nil || len(ends) == 1 {
		return interval{first, first}, err
	}
	last, err := parseIndex(ends[1], completions)
	if err == nil && first >= last {
		err = fmt.Errorf("non-increasing order, previous: %d, current: %d", first, last)
	}
	return interval{first, last}, err
}

func parseIndex(text string, completions int32) (int32, error) {
	index, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("cannot convert string to integer for index: %q", text)
	}
	if index >= int(completions) {
		return 0, fmt.Errorf("too large index: %q", text)
	}
	return int32(index), nil
}

// countIndexes is the number of indexes in a list, which must be in order and below the number of completions.
func countIndexes(list string, completions int32) (total int32, err error) {
	if list == "" {
		return 0, nil
	}
	last := int32(-1)
	for i, text := range strings.Split(list, ",") {
		run, err := parseInterval(text, completions)
		if err != nil {
			return 0, err
		}
		if i > 0 && last >= run.first {
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", last, run.first)
		}
		total += run.last - run.first + 1
		last = run.last
	}
	return total, nil
}

// checkDisjoint refuses an index that has both completed and failed. countIndexes reports lists that cannot be parsed.
func checkDisjoint(completed, failed string, completions int32) error {
	done, lost := parseableIntervals(completed, completions), parseableIntervals(failed, completions)
	for i, j := 0, 0; i < len(done) && j < len(lost); {
		if done[i].first <= lost[j].last && lost[j].first <= done[i].last {
			return fmt.Errorf("failedIndexes and completedIndexes overlap at index: %d", max(done[i].first, lost[j].first))
		}
		if done[i].first <= lost[j].first {
			i++
		} else {
			j++
		}
	}
	return nil
}

// readable are the intervals of a list that can be parsed.
func parseableIntervals(list string, completions int32) []interval {
	var runs []interval
	if list == "" {
		return nil
	}
	for _, text := range strings.Split(list, ",") {
		if run, err := parseInterval(text, completions); err == nil {
			runs = append(runs, run)
		}
	}
	return runs
}
