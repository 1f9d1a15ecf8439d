package kind

// SetDefault sets an optional field that is nil.
func SetDefault[T any](at **T, value T) {
	if *at == nil {
		*at = &value
	}
}
