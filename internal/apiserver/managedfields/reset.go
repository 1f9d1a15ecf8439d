package managedfields

import (
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"skiff/internal/kind"
)

// resetPaths are the fields that a write through an endpoint cannot change, and so cannot own: for the resource itself its status,
// for a subresource such as status everything else.
func resetPaths(k *kind.Kind, sub *kind.Subresource, desc *descriptor) [][]string {
	if sub == nil || sub.Update == nil {
		if k.CopyStatus != nil {
			return [][]string{{"status"}}
		}
		return nil
	}
	var reset [][]string
	if !sub.Update.UpdatesMetadata {
		reset = append(reset, []string{"metadata"})
	}
	owned := sub.Update.OwnedFields
	if len(owned) == 0 {
		owned = []string{sub.Name}
	}
	return append(reset, siblingsOf(owned, nil, topLevel(desc), desc)...)
}

// topLevel are the fields of an object besides its metadata. Without a descriptor they are spec and status.
func topLevel(desc *descriptor) []string {
	if desc == nil {
		return []string{"spec", "status"}
	}
	return slices.DeleteFunc(desc.names(), func(name string) bool { return name == "metadata" })
}

// siblingsOf returns the siblings of the owned dotted paths, at every level.
func siblingsOf(owned []string, at, names []string, desc *descriptor) [][]string {
	var others [][]string
	prefix := strings.Join(append(slices.Clone(at), ""), ".")
	for _, name := range names {
		path := append(slices.Clone(at), name)
		dotted := prefix + name
		whole := slices.Contains(owned, dotted)
		part := slices.ContainsFunc(owned, func(o string) bool { return strings.HasPrefix(o, dotted+".") })
		switch {
		case whole:
		case !part:
			others = append(others, path)
		case desc != nil:
			if below := desc.at(path); below != nil {
				others = append(others, siblingsOf(owned, path, below.names(), desc)...)
			}
		}
	}
	return others
}

// resetFilters are the filters of the versions. Those of a custom resource need not all have a status.
func resetFilters(k *kind.Kind, reset [][]string) map[fieldpath.APIVersion]fieldpath.Filter {
	if len(reset) == 0 {
		return nil
	}
	set := fieldpath.NewSet()
	for _, path := range reset {
		var p fieldpath.Path
		for _, name := range path {
			p = append(p, fieldpath.FieldNameElement(name))
		}
		set.Insert(p)
	}
	filters := make(map[fieldpath.APIVersion]fieldpath.Filter)
	for i := range k.Versions {
		v := &k.Versions[i]
		if k.Custom != nil && !hasStatus(k, v) {
			continue
		}
		filters[fieldpath.APIVersion(v.GVK.GroupVersion().String())] = fieldpath.NewExcludeSetFilter(set)
	}
	return filters
}

// hasStatus reports whether a version has the status subresource.
func hasStatus(k *kind.Kind, v *kind.Version) bool {
	return slices.ContainsFunc(k.SubresourcesOf(v), func(s kind.Subresource) bool { return s.Name == "status" })
}
