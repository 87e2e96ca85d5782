package shareable
func takingFDs(o Options) Options { return o }
