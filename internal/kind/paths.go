package kind

import "fmt"

// maxPathBytes bounds the length of the paths of all values in an object. Validators make the path of each value, and each error has one: a key of
// 1 MB around 100,000 items would make 100 GB of paths. Objects as large as a request can be have less than half of it otherwise.
const maxPathBytes = 64 << 20

// CheckPaths checks that the paths of all values inside a JSON value can be made at a bounded cost.
func CheckPaths(value any) error {
	if pathBytes(value, 0, 0) > maxPathBytes {
		return fmt.Errorf("the paths of all fields must not have more than %d characters in total", maxPathBytes)
	}
	return nil
}

// pathBytes adds the length of all paths inside a value, whose own path has a length, to the sum. It ends when the sum exceeds the bound.
func pathBytes(value any, path, sum int) int {
	const indexBytes = 8
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			if sum > maxPathBytes {
				return sum
			}
			length := path + 1 + len(name)
			sum = pathBytes(inner, length, sum+length)
		}
	case []any:
		for _, inner := range value {
			if sum > maxPathBytes {
				return sum
			}
			sum = pathBytes(inner, path+indexBytes, sum+path+indexBytes)
		}
	}
	return sum
}
